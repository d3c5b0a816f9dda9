"""What devices, jobs and queues did: collected every second, kept as samples, thinned with age."""
