package fleet

import (
	"fmt"
	"strings"
)

// Plan is what a fleet file and its settings come to, without doing any of it.
type Plan struct {
	Ceiling int
	Initial int
	Static  []Static
	Slots   []PlannedSlot
}

// PlannedSlot is a slot with the exact commands that would be run for it.
type PlannedSlot struct {
	Slot
	Local bool
	// Log is a path on the slot's machine.
	Log    string
	Launch Command
	Stop   Command
}

// planInstance stands for the instance that a real launch would have.
const planInstance = "INSTANCE"

// Plan lists the slots in the order in which they are filled.
func (c *Config) Plan(o Options) Plan {
	p := Plan{Ceiling: o.Ceiling, Initial: o.Initial, Static: c.Replicas}
	for _, s := range c.Slots {
		h := &c.Hosts[s.Host]
		l := Launch{Slot: s, Host: h, Instance: planInstance, Grace: o.StopGrace}
		p.Slots = append(p.Slots, PlannedSlot{Slot: s, Local: h.Local(), Log: l.LogPath(), Launch: l.LaunchCommand(), Stop: l.StopCommand()})
	}
	return p
}

// String is the text of --print-plan. It shows the values of environment
// variables, as the fleet file does, and is not for a log.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pool: %d slots, ceiling %d, %d launched at start\n", len(p.Slots), p.Ceiling, p.Initial)
	for _, s := range p.Static {
		fmt.Fprintf(&b, "replica %s: %s, never stopped\n", s.Name, s.URL())
	}
	for _, s := range p.Slots {
		where := "this machine"
		if !s.Local {
			where = "over ssh"
		}
		fmt.Fprintf(&b, "slot %s: host %s (%s), devices %s, %s, log %s\n", s.Name, s.HostName, where, joinDevices(s.Devices), s.URL(), s.Log)
		fmt.Fprintf(&b, "  launch: %s\n  stop: %s\n", s.Launch, s.Stop)
	}
	return b.String()
}

// String is the command as one would type it.
func (c Command) String() string {
	text := quoteAll(c.Args)
	if len(c.Env) > 0 {
		text = "env " + quoteAll(c.Env) + " " + text
	}
	if c.Dir != "" {
		text = "cd " + quote(c.Dir) + " && " + text
	}
	if c.Log != "" {
		text += " >>" + quote(c.Log) + " 2>&1"
	}
	return text
}
