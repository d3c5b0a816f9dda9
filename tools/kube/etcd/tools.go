//go:build tools

// Package tools names etcd's server, so that `go mod` keeps what it needs.
package tools

import _ "go.etcd.io/etcd/server/v3"
