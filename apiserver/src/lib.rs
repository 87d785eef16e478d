//! A Kubernetes API server for tests.
