"""The same config on many machines: workers and ranks by Ray, a sharded learner by torch's FSDP2."""
