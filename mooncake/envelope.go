package mooncake

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// envelope is what a peer must know of one region: where it is, how long, and
// where its engine's identity row is.
type envelope struct {
	protocol Protocol
	base     uintptr
	bytes    int64
	row      uintptr
}

const envelopeMark = "mooncake1"

// String prints mark/protocol/base/bytes/row, numbers in hexadecimal.
func (e envelope) String() string {
	return fmt.Sprintf("%s/%s/%x/%x/%x", envelopeMark, e.protocol, e.base, e.bytes, e.row)
}

// parseEnvelope refuses everything that String would not print. Its errors do
// not quote the text, which holds addresses.
func parseEnvelope(text string) (envelope, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 5 || parts[0] != envelopeMark {
		return envelope{}, errors.New("the envelope is not of provider mooncake")
	}
	var n [3]uint64
	for i, part := range parts[2:] {
		v, err := strconv.ParseUint(part, 16, 63)
		if err != nil {
			return envelope{}, errors.New("the envelope has a number that is none")
		}
		n[i] = v
	}
	e := envelope{protocol: Protocol(parts[1]), base: uintptr(n[0]), bytes: int64(n[1]), row: uintptr(n[2])}
	switch {
	case e.String() != text:
		return envelope{}, errors.New("the envelope is not in its one spelling")
	case e.base == 0 || e.row == 0 || e.bytes <= 0 || int64(e.base)+e.bytes <= 0:
		return envelope{}, errors.New("the envelope has an address or a length that cannot be")
	case e.base%transfer.Alignment != 0 || e.row%transfer.Alignment != 0:
		return envelope{}, fmt.Errorf("the envelope has an address that is not a multiple of %d", transfer.Alignment)
	}
	return e, nil
}

// remote is one region of a peer.
type remote struct {
	base uintptr
}

// readRegions opens the envelopes of a peer's registration.
func readRegions(list []pd.Region, protocol Protocol) (regions map[pd.ComponentID]remote, extents transfer.Extents, row uintptr, err error) {
	regions, extents = map[pd.ComponentID]remote{}, transfer.Extents{}
	for _, r := range list {
		e, err := parseEnvelope(r.Envelope)
		if err != nil {
			return nil, nil, 0, fmt.Errorf("region %s: %w", r.Component, err)
		}
		_, twice := regions[r.Component]
		switch {
		case e.protocol != protocol:
			return nil, nil, 0, fmt.Errorf("region %s: protocol %q, want %q on both nodes", r.Component, e.protocol, protocol)
		case e.bytes != r.Bytes:
			return nil, nil, 0, fmt.Errorf("region %s: %d bytes, but its envelope says %d", r.Component, r.Bytes, e.bytes)
		case twice:
			return nil, nil, 0, fmt.Errorf("region %s is listed twice", r.Component)
		case row != 0 && row != e.row:
			return nil, nil, 0, fmt.Errorf("region %s: another identity row than the regions before it", r.Component)
		}
		regions[r.Component], extents[r.Component], row = remote{e.base}, r.Bytes, e.row
	}
	if row == 0 {
		return nil, nil, 0, errors.New("no region")
	}
	return regions, extents, row, nil
}
