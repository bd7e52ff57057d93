"""What the machine and its operating system give: files, devices, interpreters."""
