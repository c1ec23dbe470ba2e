// Command pypto-serving runs one serving node: an ordinary replica, or one side
// of a prefill/decode pair.
package main

import (
	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/cmd/pypto-serving/app"
)

func main() { program.Main(app.Run) }
