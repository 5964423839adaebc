"""One file per command of the command line; `attittud.cli` registers them."""
