package transfer

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// RowBytes is the size of the identity row.
const RowBytes = 64

// rowMagic starts every identity row, so that foreign or zeroed memory is
// never taken for one.
const rowMagic = "PDROW\x00\x00\x01"

// Row is the identity as it lies in memory: magic (8 bytes), boot (32), rank
// and epoch (8 each, little endian), 8 zero bytes.
func (i Identity) Row() [RowBytes]byte {
	var row [RowBytes]byte
	copy(row[0:8], rowMagic)
	copy(row[8:40], i.Boot)
	binary.LittleEndian.PutUint64(row[40:48], uint64(i.Rank))
	binary.LittleEndian.PutUint64(row[48:56], uint64(i.Epoch))
	return row
}

// ParseRow reads a row that Row wrote and refuses anything else.
func ParseRow(b []byte) (Identity, error) {
	if len(b) != RowBytes || string(b[0:8]) != rowMagic {
		return Identity{}, errors.New("identity row: no row is there")
	}
	i := Identity{
		Boot:  pd.BootID(b[8:40]),
		Rank:  pd.Rank(binary.LittleEndian.Uint64(b[40:48])),
		Epoch: pd.Epoch(binary.LittleEndian.Uint64(b[48:56])),
	}
	if err := i.Check(); err != nil {
		return Identity{}, fmt.Errorf("identity row: %w", err)
	}
	return i, nil
}

// Check reports an identity that no engine can have.
func (i Identity) Check() error {
	if err := pd.CheckHexID("boot", string(i.Boot)); err != nil {
		return err
	}
	switch {
	case i.Rank < 0 || i.Rank >= pd.MaxRanks:
		return fmt.Errorf("rank %d: want 0..%d", i.Rank, pd.MaxRanks-1)
	case i.Epoch < 1:
		return errors.New("epoch 0: epochs start at 1")
	}
	return nil
}
