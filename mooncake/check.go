package mooncake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/hw-native-sys/pypto-pd/cgo/acl"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// envRoCE says whether devices of one host talk over RoCE, as devices of two
// hosts always do. Both nodes of a pair must be set alike, so it must be set.
const envRoCE = "HCCL_INTRA_ROCE_ENABLE"

// hccnConf tells the device's network interface its addresses.
const hccnConf = "/etc/hccn.conf"

// Check makes every check that can be made before an engine is opened, and
// loads the library. The error names each cause and what to do about it; what
// is only suspicious is logged. hostname is the data-plane address that peers
// will use.
func (p *Provider) Check(ctx context.Context, hostname string) error {
	const op = "check mooncake"
	_, device, err := p.load(hostname)
	if err != nil {
		return err
	}
	all := []error{p.checkHostname(ctx, hostname)}
	if p.options.Protocol == Ascend {
		all = append(all, checkRoCE(os.LookupEnv, hccnConf), p.checkDevices(device))
	}
	if err := errors.Join(all...); err != nil {
		return &pd.Error{Op: op, Code: pd.CodeInvalidConfig, Err: err}
	}
	return nil
}

// checkHostname refuses a name that does not resolve. The library does not bind
// to it, so that it is of this machine is only likely.
func (p *Provider) checkHostname(ctx context.Context, hostname string) error {
	if hostname == "" {
		return errors.New("hostname is empty: set transfer_hostname or host")
	}
	addresses, err := net.DefaultResolver.LookupHost(ctx, hostname)
	if err != nil {
		return fmt.Errorf("hostname %s: %w; peers use this name, so give transfer_hostname an address of this machine", hostname, err)
	}
	ours := map[string]bool{}
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil // nothing to compare with
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			ours[n.IP.String()] = true
		}
	}
	for _, a := range addresses {
		ip := net.ParseIP(a)
		switch {
		case ip == nil:
		case ip.IsLoopback():
			p.options.Log.Warn("the data-plane hostname is of the loopback interface; peers on other machines cannot use it", slog.String("hostname", hostname))
		case !ours[ip.String()]:
			p.options.Log.Warn("the data-plane hostname is no address of this machine", slog.String("hostname", hostname), slog.String("address", a))
		}
	}
	return nil
}

// checkRoCE looks at the settings of the links between devices.
func checkRoCE(lookup func(string) (string, bool), conf string) error {
	value, set := lookup(envRoCE)
	switch {
	case !set:
		return fmt.Errorf("%s is not set: set it to 1 for pairs on two hosts (RoCE), or to 0 where all devices share HCCS; both nodes alike", envRoCE)
	case value != "0" && value != "1":
		return fmt.Errorf("%s is %q: want 0 or 1", envRoCE, value)
	case value == "0":
		return nil
	}
	if _, err := os.Stat(conf); err != nil {
		return fmt.Errorf("RoCE: %w; the device's network address is read from it, so mount the host's file into the container", err)
	}
	return nil
}

// checkDevices asks the runtime whether there is a device at all.
func (p *Provider) checkDevices(api *acl.API) error {
	k := startKeeper()
	defer k.end()
	id := p.options.Device(0)
	d, err := openDevice(api, k, id)
	if err != nil {
		return fmt.Errorf("ascend device: %w", err)
	}
	var soc string
	d.keeper.do(func() { soc = api.SocName() })
	p.options.Log.Info("ascend runtime loaded", slog.String("path", api.Info().Path), slog.String("version", api.Version()),
		slog.String("soc", soc), slog.Int("device", id))
	return nil
}
