"""The daemons' entry points: read the configuration, build, run.

Their modules import next to nothing, so that a SIGTERM in the first moments, while the libraries are still being
imported, ends the process in order.
"""
