"""Where the map steps run: in this process (local) or on a Spark cluster."""
