package edge

import "io"

// CopyTo passes the rest of the answer's body on to a stream, byte for byte. What
// arrives together leaves at once and together. first, if set, is called before
// the first byte is written. It returns the bytes that were passed on, and nil at
// the answer's end; else an *ExchangeError, or that of a failed write, which wraps
// ErrClientGone.
func (x *Exchange) CopyTo(w *StreamWriter, first func()) (int64, error) {
	pooled := pumpBuffers.Get().(*[]byte)
	defer func() { pumpBuffers.Put(pooled) }()
	q := quietRead(x)
	for passed := int64(0); ; {
		if q != nil && q.empty() {
			// Most streams say nothing most of the time.
			pumpBuffers.Put(pooled)
			q.wait()
			pooled = pumpBuffers.Get().(*[]byte)
		}
		buf := *pooled
		n, err := x.Read(buf)
		if n > 0 {
			if passed == 0 && first != nil {
				first()
			}
			w.Write(buf[:n]) // an error stays for the flush
			passed += int64(n)
			if x.Complete() {
				// The stream's own end goes out with the last bytes.
				return passed, w.err
			}
			if err := w.Flush(); err != nil {
				return passed, err
			}
		}
		switch {
		case err == io.EOF:
			return passed, nil
		case err != nil:
			return passed, err
		}
	}
}
