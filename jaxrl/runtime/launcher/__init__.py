"""``jaxrl launch``: processes of a group on this machine, supervised."""
