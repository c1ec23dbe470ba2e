module github.com/hw-native-sys/pypto-pd

go 1.26
