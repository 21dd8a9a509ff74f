"""Finds what is wrong: in logs of several libraries, in configs, in the folders of runs, on this machine."""
