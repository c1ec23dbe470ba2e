// Package embed runs libpypto-pd inside hosts that are written in other
// languages (examples/embed_c, examples/embed_python), as real processes under a
// real router, paired with each other and with pypto-serving.
package embed
