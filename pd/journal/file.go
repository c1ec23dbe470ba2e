package journal

import (
	"os"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// fileMode keeps what is written to the owner.
const fileMode = 0o600

// file is one append-only file of bounded size.
type file struct {
	path string
	f    *os.File
	size int64
}

func (f *file) open() error {
	opened, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	info, err := opened.Stat()
	if err != nil {
		opened.Close()
		return err
	}
	f.f, f.size = opened, info.Size()
	return nil
}

func (f *file) write(text []byte) error {
	if f.size > 0 && f.size+int64(len(text)) > pd.MaxJournalFileBytes {
		if err := f.turn(); err != nil {
			return err
		}
	}
	n, err := f.f.Write(text)
	f.size += int64(n)
	return err
}

// turn moves a full file aside. An earlier one is lost: the bound holds for a
// process that runs for months.
func (f *file) turn() error {
	if err := os.Rename(f.path, f.path+".1"); err != nil {
		return err
	}
	f.f.Close() // nothing is buffered
	return f.open()
}

func (f *file) close() error {
	if f == nil || f.f == nil {
		return nil
	}
	return f.f.Close()
}
