package mooncake

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
)

// forced are variables that must have one value, because a settlement rests on
// it. A user's other value is refused rather than replaced: he may have meant
// it.
var forced = []struct {
	name, value string
	only        Protocol
	reason      string
}{
	{"MC_RETRY_CNT", "1", "", "a hidden second try may land after the first one completed"},
	{"MC_TCP_ENABLE_CONNECTION_POOL", "1", TCP, "without it every copy opens a connection inside the submit call"},
	{"MC_FORCE_TCP", "1", TCP, "without it the library picks a transport by what hardware it finds"},
	{"ASCEND_AUTO_CONNECT", "0", Ascend, "with it a failed try is not disconnected before the next one"},
}

// banned are variables that must not be set.
var banned = []struct{ name, reason string }{
	{"MC_TCP_PROTO", "with the old protocol a completed write has only left this machine"},
	{"MC_SLICE_TIMEOUT", "it makes the library give up on writes that go on"},
	{"MC_USE_TENT", "it selects another engine, whose behaviour nothing here was checked against"},
	{"MC_USE_TEV1", "it selects another engine, whose behaviour nothing here was checked against"},
	{"MC_LEGACY_RPC_PORT_BINDING", "it takes the same port again after a fence"},
	{"MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", "fewer than are kept open here can wedge the library"},
	{"ASCEND_BUFFER_POOL", "it stages writes in host memory"},
}

// environment is what the library is to see, with an empty value for what it is
// not to see, after checking what the user set.
// hostname is the first that the process uses.
func environment(o *Options, hostname string) (map[string]string, error) {
	var all []error
	env := map[string]string{}
	force := func(name, value, reason string) {
		if got, set := os.LookupEnv(name); set && got != value {
			all = append(all, fmt.Errorf("environment: %s is %q: unset it or set it to %s: %s", name, got, value, reason))
		}
		env[name] = value
	}
	for _, b := range banned {
		if got, set := os.LookupEnv(b.name); set {
			all = append(all, fmt.Errorf("environment: %s is %q: unset it: %s", b.name, got, b.reason))
		}
	}
	for _, f := range forced {
		if f.only == "" || f.only == o.Protocol {
			force(f.name, f.value, f.reason)
		}
	}
	if o.Protocol == Ascend {
		if got, set := os.LookupEnv("MC_FORCE_TCP"); set {
			all = append(all, fmt.Errorf("environment: MC_FORCE_TCP is %q: unset it: it keeps the device transport out", got))
		}
		env["MC_FORCE_TCP"] = ""
		const reason = "it is set from the provider's options"
		force("ASCEND_BASE_PORT", strconv.Itoa(o.AscendBasePort), reason)
		force("ASCEND_CONNECT_TIMEOUT", strconv.FormatInt(o.ConnectTimeout.Milliseconds(), 10), reason)
		force("ASCEND_TRANSFER_TIMEOUT", strconv.FormatInt(o.TransferTimeout.Milliseconds(), 10), reason)
		if o.AscendAsync {
			env["ASCEND_USE_ASYNC_TRANSFER"] = "1"
		}
	}
	// Both spellings exist; the first wins where it is known.
	for _, name := range []string{"MC_MIN_RPC_PORT", "MC_MIN_PRC_PORT"} {
		env[name] = strconv.Itoa(o.MinPort)
	}
	for _, name := range []string{"MC_MAX_RPC_PORT", "MC_MAX_PRC_PORT"} {
		env[name] = strconv.Itoa(o.MaxPort)
	}
	if ip := net.ParseIP(hostname); ip != nil {
		// The library has one family at a time, and any value is yes.
		env["MC_USE_IPV6"] = ""
		if ip.To4() == nil {
			env["MC_USE_IPV6"] = "1"
		}
	}
	if _, set := os.LookupEnv("MC_LOG_LEVEL"); !set {
		env["MC_LOG_LEVEL"] = o.LogLevel
	}
	return env, errors.Join(all...)
}
