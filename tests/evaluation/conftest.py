import pandas as pd
import pytest
from silicon_row import raw_row


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """Return four measurements of two models as a file."""
    path = tmp_path_factory.mktemp("source") / "silicon_sample.csv"
    rows = [
        raw_row(
            id=f"{model} {clients}",
            silicon_data_source=f"x.csv; silicon_concurrency={clients}; measured=2025-11-03T00:00Z",
            model_path=model,
            system="h100_sxm",
            isl=256,
            osl=64,
            precision=precision,
            silicon_tpot_ms=8.0 + clients / 4,
        )
        for model, precision in (
            ("meta-llama/Llama-3.1-70B", "fp8"),
            ("openai/gpt-oss-120b", "fp4"),
        )
        for clients in (2, 4)
    ]
    pd.DataFrame(rows).to_csv(path, index=False)
    return path
