// Command pypto-pdctl is the operator's tool.
package main

import (
	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/cmd/pypto-pdctl/app"
)

func main() { program.Main(app.Run) }
