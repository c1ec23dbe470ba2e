//go:build cgo

package main

// #cgo CFLAGS: -I${SRCDIR}/../../include -fvisibility=hidden -Wall -Werror
// #include "pypto/pd.h"
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/hw-native-sys/pypto-pd/cgo/handle"
	"github.com/hw-native-sys/pypto-pd/cmd/libpypto-pd/host"
	"github.com/hw-native-sys/pypto-pd/cmd/program"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// What is open.
var (
	nodes  handle.Table[*host.Node]
	owners handle.Table[*host.Owner]
)

// write puts text where C wants it.
func write(out *C.pypto_pd_text, text string) {
	if out == nil {
		return
	}
	out.len = C.uint64_t(len(text))
	if n := min(uint64(len(text)), uint64(out.cap)); n > 0 && out.at != nil {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(out.at)), n), text)
	}
}

// read copies text that C owns.
func read(b C.pypto_pd_bytes) string {
	if b.at == nil || b.len == 0 {
		return ""
	}
	return string(unsafe.Slice((*byte)(unsafe.Pointer(b.at)), b.len))
}

// maxText bounds what one call may hand over; a body that is larger was refused
// by the host's own HTTP server long before.
const maxText = pd.MaxHTTPBodyBytes

// guard runs f and turns its error, or its panic, into a code and a reason.
func guard(why *C.pypto_pd_text, f func() error) (code C.int32_t) {
	defer func() {
		if p := recover(); p != nil {
			write(why, fmt.Sprint("libpypto-pd: ", p))
			code = C.PYPTO_PD_PANIC
		}
	}()
	if err := f(); err != nil {
		write(why, err.Error())
		return C.int32_t(pd.CodeOf(err))
	}
	return 0
}

// with finds the node of a handle.
func with(node C.pypto_pd_node, why *C.pypto_pd_text, f func(n *host.Node) error) C.int32_t {
	return guard(why, func() error {
		n, ok := nodes.Get(handle.Handle(node))
		if !ok {
			return pd.Errorf(pd.CodeUnknownKey, "node", "the handle names no open node")
		}
		return f(n)
	})
}

// about is with for calls about one handoff.
func about(node C.pypto_pd_node, handoff *C.char, why *C.pypto_pd_text, f func(n *host.Node, h pd.HandoffID) error) C.int32_t {
	return with(node, why, func(n *host.Node) error {
		if handoff == nil {
			return pd.Errorf(pd.CodeInvalidRequest, "handoff", "the handoff is NULL")
		}
		return f(n, pd.HandoffID(C.GoString(handoff)))
	})
}

// within gives a context of so many milliseconds.
func within(ms C.int64_t) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Duration(max(0, min(int64(ms), int64(pd.MaxTimeout/time.Millisecond))))*time.Millisecond)
}

var errNull = errors.New("a pointer is NULL")

func null() error { return &pd.Error{Op: "call", Code: pd.CodeInvalidRequest, Err: errNull} }

//export goVersion
func goVersion(out *C.pypto_pd_text) C.int32_t {
	return guard(nil, func() error {
		write(out, program.Version())
		return nil
	})
}

//export goNodeOpen
func goNodeOpen(config C.pypto_pd_bytes, out *C.pypto_pd_node, why *C.pypto_pd_text) C.int32_t {
	return guard(why, func() error {
		if out == nil {
			return null()
		}
		if config.len > pd.MaxConfigBytes {
			return pd.Errorf(pd.CodeInvalidConfig, "open", "%d bytes of configuration, the limit is %d", uint64(config.len), pd.MaxConfigBytes)
		}
		n, err := host.Open([]byte(read(config)))
		if err != nil {
			return err
		}
		*out = C.pypto_pd_node(nodes.Put(n))
		return nil
	})
}

//export goNodeShape
func goNodeShape(node C.pypto_pd_node, ranks, regions *C.int32_t, why *C.pypto_pd_text) C.int32_t {
	return with(node, why, func(n *host.Node) error {
		if ranks == nil || regions == nil {
			return null()
		}
		*ranks, *regions = C.int32_t(n.Ranks()), C.int32_t(len(n.Regions()))
		return nil
	})
}

//export goNodeRegion
func goNodeRegion(node C.pypto_pd_node, index C.int32_t, out *C.pypto_pd_region, why *C.pypto_pd_text) C.int32_t {
	return with(node, why, func(n *host.Node) error {
		all := n.Regions()
		switch {
		case out == nil:
			return null()
		case index < 0 || int(index) >= len(all):
			return pd.Errorf(pd.CodeInvalidRequest, "region", "region %d of %d", int(index), len(all))
		}
		r := all[index]
		*out = C.pypto_pd_region{
			bytes: C.uint64_t(r.Bytes), group: C.int32_t(r.Group), layers: C.int32_t(r.Layers), pages_per_layer: C.int32_t(r.PagesPerLayer),
			pool_pages: C.int32_t(r.PoolPages), page_bytes: C.int32_t(r.PageBytes), row_bytes: C.int32_t(r.RowBytes),
			rows_per_page: C.int32_t(r.RowsPerPage), row_tokens: C.int32_t(r.RowTokens), page_tokens: C.int32_t(r.PageTokens),
			ring_period: C.int32_t(r.RingPeriod), window_tokens: C.int32_t(r.WindowTokens),
		}
		text(out.component[:], string(r.Component))
		return nil
	})
}

// text fills a zero-terminated field.
func text(out []C.char, s string) {
	for i := range min(len(s), len(out)-1) {
		out[i] = C.char(s[i])
	}
}

//export goNodeMemory
func goNodeMemory(node C.pypto_pd_node, rank, index C.int32_t, address, bytes C.uint64_t, why *C.pypto_pd_text) C.int32_t {
	return with(node, why, func(n *host.Node) error {
		return n.Memory(int(rank), int(index), uintptr(address), int64(bytes))
	})
}

//export goNodeStart
func goNodeStart(node C.pypto_pd_node, timeout C.int64_t, why *C.pypto_pd_text) C.int32_t {
	return with(node, why, func(n *host.Node) error {
		ctx, cancel := within(timeout)
		defer cancel()
		return n.Start(ctx)
	})
}

//export goNodeSelf
func goNodeSelf(node C.pypto_pd_node, out, why *C.pypto_pd_text) C.int32_t {
	return with(node, why, func(n *host.Node) error {
		self, err := n.Self()
		if err == nil {
			write(out, self.String())
		}
		return err
	})
}

//export goNodePoll
func goNodePoll(node C.pypto_pd_node, timeout C.int64_t, out *C.pypto_pd_event, why *C.pypto_pd_text) C.int32_t {
	return with(node, nil, func(n *host.Node) error {
		if out == nil {
			return null()
		}
		ctx, cancel := within(timeout)
		defer cancel()
		e, err := n.Poll(ctx)
		if err != nil {
			write(why, err.Error())
			return err
		}
		*out = C.pypto_pd_event{
			kind: C.int32_t(e.Kind), code: C.int32_t(e.Code), chunk: C.int32_t(e.Chunk), partition: C.int32_t(e.Partition),
			slot: C.int32_t(e.Slot), first_token: C.int32_t(e.FirstToken), tokens: C.int64_t(e.Tokens), max_new_tokens: C.int64_t(e.MaxNewTokens),
			hit_tokens: C.int64_t(max(e.HitTokens, e.HitLimit)), cached_tokens: C.int64_t(e.CachedTokens),
		}
		text(out.handoff[:], string(e.Handoff))
		text(out.request[:], string(e.Request))
		write(why, e.Why)
		return nil
	})
}

//export goNodeStatus
func goNodeStatus(node C.pypto_pd_node, out, why *C.pypto_pd_text) C.int32_t {
	return with(node, why, func(n *host.Node) error {
		status, err := n.Status()
		if err != nil {
			return err
		}
		b, err := json.Marshal(status)
		write(out, string(b))
		return err
	})
}

//export goNodeDrain
func goNodeDrain(node C.pypto_pd_node, timeout C.int64_t, why *C.pypto_pd_text) C.int32_t {
	return with(node, why, func(n *host.Node) error {
		ctx, cancel := within(timeout)
		defer cancel()
		return n.Drain(ctx)
	})
}

//export goNodeClose
func goNodeClose(node C.pypto_pd_node, timeout C.int64_t, why *C.pypto_pd_text) C.int32_t {
	return with(node, why, func(n *host.Node) error {
		ctx, cancel := within(timeout)
		defer cancel()
		if err := n.Close(ctx); err != nil {
			return err
		}
		nodes.Take(handle.Handle(node))
		return nil
	})
}

//export goPost
func goPost(node C.pypto_pd_node, route *C.pypto_pd_route, continuation C.pypto_pd_bytes, why *C.pypto_pd_text) C.int32_t {
	return with(node, why, func(n *host.Node) error {
		if route == nil {
			return null()
		}
		if continuation.len > maxText {
			return pd.Errorf(pd.CodeBodyTooLarge, "post", "%d bytes, the limit is %d", uint64(continuation.len), maxText)
		}
		fields := [...]C.pypto_pd_bytes{route.version, route.request, route.handoff, route.run, route.self, route.peer}
		var r openai.Route
		for i, f := range fields {
			if f.len > pd.MaxIDBytes*2 {
				return pd.Errorf(pd.CodeRouteMissing, "post", "%s has %d bytes", openai.RouteHeaders[i], uint64(f.len))
			}
			r[i] = read(f)
		}
		return n.Post(r, []byte(read(continuation)))
	})
}

//export goLeave
func goLeave(node C.pypto_pd_node, handoff *C.char, why *C.pypto_pd_text) C.int32_t {
	return about(node, handoff, why, func(n *host.Node, h pd.HandoffID) error { return n.Leave(h) })
}

//export goPrompt
func goPrompt(node C.pypto_pd_node, handoff *C.char, tokens *C.int32_t, space C.uint64_t, length *C.uint64_t, why *C.pypto_pd_text) C.int32_t {
	return about(node, handoff, why, func(n *host.Node, h pd.HandoffID) error {
		if length == nil {
			return null()
		}
		c, err := n.Continuation(h)
		if err != nil {
			return err
		}
		*length = C.uint64_t(len(c.PromptTokens))
		if tokens != nil {
			copy(unsafe.Slice((*pd.Token)(unsafe.Pointer(tokens)), min(uint64(space), uint64(len(c.PromptTokens)))), c.PromptTokens)
		}
		return nil
	})
}

//export goContinuation
func goContinuation(node C.pypto_pd_node, handoff *C.char, out, why *C.pypto_pd_text) C.int32_t {
	return about(node, handoff, why, func(n *host.Node, h pd.HandoffID) error {
		c, err := n.Continuation(h)
		if err != nil {
			return err
		}
		b, err := json.Marshal(c)
		write(out, string(b))
		return err
	})
}

// runs copies a list of runs.
func runs(at *C.pypto_pd_run, count C.uint64_t) ([]host.Run, error) {
	const most = pd.MaxGroups * pd.MaxTablePages
	if count > most {
		return nil, pd.Errorf(pd.CodeInvalidRequest, "runs", "%d runs, the limit is %d", uint64(count), most)
	}
	if at == nil && count > 0 {
		return nil, null()
	}
	out := make([]host.Run, 0, count)
	for _, r := range unsafe.Slice(at, count) {
		out = append(out, host.Run{Group: int(r.group), First: int(r.first), Count: int(r.count)})
	}
	return out, nil
}

//export goChunkReady
func goChunkReady(node C.pypto_pd_node, handoff *C.char, chunk *C.pypto_pd_chunk, at *C.pypto_pd_run, count C.uint64_t, why *C.pypto_pd_text) C.int32_t {
	return about(node, handoff, why, func(n *host.Node, h pd.HandoffID) error {
		if chunk == nil {
			return null()
		}
		list, err := runs(at, count)
		if err != nil {
			return err
		}
		return n.ChunkReady(h, host.Chunk{
			Chunk: pd.ChunkID(chunk.chunk), Partition: pd.Partition(chunk.partition), Span: pd.Span{Start: int(chunk.start), End: int(chunk.end)},
			Final: chunk.final != 0, HitTokens: int(chunk.hit_tokens), Slot: int(chunk.slot), FirstToken: pd.Token(chunk.first_token),
		}, list)
	})
}

//export goPrefillStopped
func goPrefillStopped(node C.pypto_pd_node, handoff *C.char, code C.int32_t, why *C.pypto_pd_text) C.int32_t {
	return about(node, handoff, why, func(n *host.Node, h pd.HandoffID) error { return n.PrefillStopped(h, pd.Code(code)) })
}

//export goGrant
func goGrant(node C.pypto_pd_node, handoff *C.char, memory *C.pypto_pd_memory, at *C.pypto_pd_run, count C.uint64_t, why *C.pypto_pd_text) C.int32_t {
	return about(node, handoff, why, func(n *host.Node, h pd.HandoffID) error {
		if memory == nil {
			return null()
		}
		list, err := runs(at, count)
		if err != nil {
			return err
		}
		return n.Grant(h, pd.Partition(memory.partition), int(memory.slot), int(memory.hit_tokens), list)
	})
}

//export goRefuse
func goRefuse(node C.pypto_pd_node, handoff *C.char, why *C.pypto_pd_text) C.int32_t {
	return about(node, handoff, why, func(n *host.Node, h pd.HandoffID) error { return n.Refuse(h) })
}

//export goDecodeStopped
func goDecodeStopped(node C.pypto_pd_node, handoff *C.char, code C.int32_t, why *C.pypto_pd_text) C.int32_t {
	return about(node, handoff, why, func(n *host.Node, h pd.HandoffID) error { return n.DecodeStopped(h, pd.Code(code)) })
}

// withOwner finds the owner of a handle.
func withOwner(at C.pypto_pd_owner, why *C.pypto_pd_text, f func(o *host.Owner) error) C.int32_t {
	return guard(why, func() error {
		o, ok := owners.Get(handle.Handle(at))
		if !ok {
			return pd.Errorf(pd.CodeUnknownKey, "owner", "the handle names no open owner")
		}
		return f(o)
	})
}

//export goOwnerOpen
func goOwnerOpen(config C.pypto_pd_bytes, out *C.pypto_pd_owner, why *C.pypto_pd_text) C.int32_t {
	return guard(why, func() error {
		if out == nil {
			return null()
		}
		if config.len > pd.MaxConfigBytes {
			return pd.Errorf(pd.CodeInvalidConfig, "open", "%d bytes of configuration, the limit is %d", uint64(config.len), pd.MaxConfigBytes)
		}
		o, err := host.OpenOwner([]byte(read(config)))
		if err != nil {
			return err
		}
		*out = C.pypto_pd_owner(owners.Put(o))
		return nil
	})
}

//export goOwnerMemory
func goOwnerMemory(at C.pypto_pd_owner, component *C.char, address, bytes C.uint64_t, why *C.pypto_pd_text) C.int32_t {
	return withOwner(at, why, func(o *host.Owner) error {
		if component == nil {
			return null()
		}
		return o.Memory(pd.ComponentID(C.GoString(component)), uintptr(address), int64(bytes))
	})
}

//export goOwnerFreeze
func goOwnerFreeze(at C.pypto_pd_owner, why *C.pypto_pd_text) C.int32_t {
	return withOwner(at, why, func(o *host.Owner) error { return o.Freeze() })
}

//export goOwnerServe
func goOwnerServe(at C.pypto_pd_owner, path *C.char, why *C.pypto_pd_text) C.int32_t {
	return withOwner(at, why, func(o *host.Owner) error {
		if path == nil {
			return null()
		}
		return o.Serve(C.GoString(path))
	})
}

//export goOwnerState
func goOwnerState(at C.pypto_pd_owner, serving *C.int32_t, why *C.pypto_pd_text) C.int32_t {
	return withOwner(at, why, func(o *host.Owner) error {
		if serving == nil {
			return null()
		}
		serves, last := o.State()
		*serving = 0
		if serves {
			*serving = 1
		}
		if last != nil {
			write(why, last.Error())
		}
		return nil
	})
}

//export goOwnerClose
func goOwnerClose(at C.pypto_pd_owner, timeout C.int64_t, why *C.pypto_pd_text) C.int32_t {
	return withOwner(at, why, func(o *host.Owner) error {
		ctx, cancel := within(timeout)
		defer cancel()
		if err := o.Close(ctx); err != nil {
			return err
		}
		owners.Take(handle.Handle(at))
		return nil
	})
}
