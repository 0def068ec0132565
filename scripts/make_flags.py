"""Write Go's structs of flags and specs and its tables anew: ``make flags``."""

from pathlib import Path

from generating.go_structs import GO_FLAGS, GO_SPECS, go_flags, go_specs
from generating.go_tables import GO_TABLES, go_tables

if __name__ == "__main__":
    for path, text in ((GO_FLAGS, go_flags()), (GO_SPECS, go_specs()), (GO_TABLES, go_tables())):
        (Path(__file__).resolve().parents[1] / path).write_text(text)
        print(path)
