"""HTML pages from templates that are stored with the code."""

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from pinn.common.numbers import exact, number


def template(package: str, name: str) -> Template:
    """Load a template from a package's folder; values inserted into it are HTML-escaped."""
    environment = Environment(
        loader=PackageLoader(package, "."),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "exact": exact}
    return environment.get_template(name)
