"""Evolution of parameters that are tested outside of jaxrl: functions in other processes, and a product's log of rewards."""
