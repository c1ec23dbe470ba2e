// Command pypto-pd-router is the external router of prefill/decode pairs.
package main

import (
	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/cmd/pypto-pd-router/app"
)

func main() { program.Main(app.Run) }
