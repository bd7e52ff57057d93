"""The machine and its operating system: files, devices, memory, processes."""
