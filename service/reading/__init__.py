"""What the pages show, read from the tables: frozen values, a module per page, no formatting."""
