package app

import "github.com/hw-native-sys/pypto-pd/pd/edge"

func replicaRoutes(*replica) map[string]edge.Handler { return nil }
func pdRoutes(*pdNode) map[string]edge.Handler       { return nil }
