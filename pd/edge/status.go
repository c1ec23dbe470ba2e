package edge

import (
	"errors"
	"syscall"

	"github.com/valyala/fasthttp"
)

func statusText(status int) string { return fasthttp.StatusMessage(status) }

// isReset says that the other side ended the connection abruptly.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
