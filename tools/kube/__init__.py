"""A real Kubernetes cluster on this machine, for tests, benches and `make kube`: built from Go modules,
isolated in namespaces."""
