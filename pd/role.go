package pd

import "fmt"

// Role is the side of a pair that a node takes. The zero value is invalid.
type Role int

// The roles. Numbers are append-only: they cross the C ABI.
const (
	Prefill Role = 1
	Decode  Role = 2
)

// String gives the spelling used in flags, JSON and logs.
func (r Role) String() string {
	switch r {
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	}
	return fmt.Sprintf("Role(%d)", int(r))
}

// Letter is the short form in log folders and file names: p or d.
func (r Role) Letter() string { return r.String()[:1] }

// Other is the opposite side of a pair.
func (r Role) Other() Role {
	if r == Prefill {
		return Decode
	}
	return Prefill
}

// MarshalText implements encoding.TextMarshaler.
func (r Role) MarshalText() ([]byte, error) {
	if r != Prefill && r != Decode {
		return nil, fmt.Errorf("invalid role %d", int(r))
	}
	return []byte(r.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Role) UnmarshalText(b []byte) error {
	switch string(b) {
	case "prefill":
		*r = Prefill
	case "decode":
		*r = Decode
	default:
		return fmt.Errorf("role %q: want prefill or decode", b)
	}
	return nil
}

// Health is what a node says of itself. The zero value is invalid.
type Health int

// The health states (pd-domain §4.3).
const (
	Starting         Health = 1
	Ready            Health = 2
	Draining         Health = 3
	RecoveryRequired Health = 4
)

var healthNames = map[Health]string{
	Starting: "STARTING", Ready: "READY", Draining: "DRAINING", RecoveryRequired: "RECOVERY_REQUIRED",
}

// String gives the wire spelling.
func (h Health) String() string {
	if s, ok := healthNames[h]; ok {
		return s
	}
	return fmt.Sprintf("Health(%d)", int(h))
}

// MarshalText implements encoding.TextMarshaler.
func (h Health) MarshalText() ([]byte, error) {
	if _, ok := healthNames[h]; !ok {
		return nil, fmt.Errorf("invalid health %d", int(h))
	}
	return []byte(h.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Health) UnmarshalText(b []byte) error {
	for k, v := range healthNames {
		if v == string(b) {
			*h = k
			return nil
		}
	}
	return fmt.Errorf("health %q is unknown", b)
}
