"""One file per command of the command line; `attittud_lab.cli` registers them."""
