// Command pypto-serving-router spreads requests over independent replicas and
// keeps each conversation on one of them.
package main

import (
	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/cmd/pypto-serving-router/app"
)

func main() { program.Main(app.Run) }
