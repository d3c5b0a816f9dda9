"""A real Kubernetes on this machine, for tests, benches and `make kube`: built from Go modules, closed off in
namespaces."""
