"""Usage of devices, jobs and queues: collected every second, stored as samples, thinned with age."""
