"""From a config to a job: builds the parts, starts searches and sweeps."""
