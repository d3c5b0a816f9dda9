"""Usage of devices, jobs and queues: collected every second, stored as samples, combined into coarser ones with
age."""
