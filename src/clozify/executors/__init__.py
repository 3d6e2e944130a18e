"""Where work is done when this process is not to do it all: processes of this machine."""
