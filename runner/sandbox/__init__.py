"""Where a trial process runs: behind one interface, a plain process or a container."""
