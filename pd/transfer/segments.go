package transfer

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Alignment is what every base address, offset and length is a multiple of, in
// bytes: the smallest page (an indexer scale page) is twice that.
const Alignment = 64

// Extents are the lengths in bytes of the regions of one rank.
type Extents map[pd.ComponentID]int64

// CheckSegments checks that every segment is a non-empty, aligned range inside
// the source's and the target's extent, and returns their total length in
// bytes. Providers call it before a batch is accepted and owners before the
// first rank of a chunk is, so that a wrong plan writes nothing at all. The
// error names the first bad segment by its position.
func CheckSegments(segments []pd.Segment, source, target Extents) (int64, error) {
	var (
		total                int64
		component            pd.ComponentID
		sourceLen, targetLen int64
		known                bool
	)
	for i := range segments {
		s := &segments[i]
		// Segments come grouped by component; look its extents up once per run.
		if !known || s.Component != component {
			var here, there bool
			sourceLen, here = source[s.Component]
			targetLen, there = target[s.Component]
			switch {
			case !here:
				return 0, fmt.Errorf("segment %d: component %q is not registered at the source", i, s.Component)
			case !there:
				return 0, fmt.Errorf("segment %d: component %q is not registered at the target", i, s.Component)
			}
			component, known = s.Component, true
		}
		if s.Bytes <= 0 {
			return 0, fmt.Errorf("segment %d of %s: length %d: want more than 0 bytes", i, component, s.Bytes)
		}
		if s.Bytes%Alignment != 0 || s.SourceOffset%Alignment != 0 || s.TargetOffset%Alignment != 0 {
			return 0, fmt.Errorf("segment %d of %s: source offset %d, target offset %d, length %d: want multiples of %d bytes",
				i, component, s.SourceOffset, s.TargetOffset, s.Bytes, Alignment)
		}
		if !inside(s.SourceOffset, s.Bytes, sourceLen) {
			return 0, fmt.Errorf("segment %d of %s: source [%d,+%d) is outside the extent of %d bytes",
				i, component, s.SourceOffset, s.Bytes, sourceLen)
		}
		if !inside(s.TargetOffset, s.Bytes, targetLen) {
			return 0, fmt.Errorf("segment %d of %s: target [%d,+%d) is outside the extent of %d bytes",
				i, component, s.TargetOffset, s.Bytes, targetLen)
		}
		if total += s.Bytes; total < 0 {
			return 0, fmt.Errorf("segment %d of %s: the total length overflows", i, component)
		}
	}
	return total, nil
}

// inside says whether [offset, offset+length) lies in [0, extent) without
// computing a sum that could overflow.
func inside(offset, length, extent int64) bool {
	return offset >= 0 && length <= extent && offset <= extent-length
}
