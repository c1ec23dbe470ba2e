// Command stub-replica is the stub as a program that a fleet router launches; it
// reads the command line of pypto-serving and the variables of package stub.
package main

import "github.com/hw-native-sys/pypto-pd/tests/fleet/stub"

func main() { stub.Main() }
