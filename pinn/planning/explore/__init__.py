"""A page that times steps in the browser, from coefficients of a few configurations."""
