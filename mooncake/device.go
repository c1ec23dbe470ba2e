package mooncake

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/cgo/acl"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// device allocates in one Ascend device, from a thread that has its context.
type device struct {
	api    *acl.API
	keeper *keeper
	id     int
}

// openDevice gives the keeper's thread the device's context.
func openDevice(api *acl.API, k *keeper, id int) (*device, error) {
	var err error
	k.do(func() {
		var count int
		if err = api.Init(); err != nil {
			return
		}
		if count, err = api.DeviceCount(); err != nil {
			return
		}
		if id < 0 || id >= count {
			err = fmt.Errorf("device %d: this process sees %d devices; check ASCEND_RT_VISIBLE_DEVICES", id, count)
			return
		}
		err = api.SetDevice(id)
	})
	if err != nil {
		return nil, err
	}
	return &device{api: api, keeper: k, id: id}, nil
}

func (d *device) allocate(bytes int64) (memory, func() error, error) {
	var base uintptr
	var err error
	d.keeper.do(func() {
		if base, err = d.api.Malloc(bytes); err != nil {
			if free, total, unknown := d.api.MemoryInfo(); unknown == nil {
				err = fmt.Errorf("%w; device %d has %d of %d bytes free", err, d.id, free, total)
			}
			return
		}
		if base%transfer.Alignment != 0 {
			err = fmt.Errorf("aclrtMalloc: the address is not a multiple of %d", transfer.Alignment)
		} else {
			err = d.api.Fill(base, bytes, 0)
		}
		if err != nil {
			_ = d.api.Free(base) // the error before it is the one to tell
		}
	})
	if err != nil {
		return nil, nil, err
	}
	m := &DeviceMemory{device: d, base: base, bytes: bytes}
	return m, func() (err error) {
		d.keeper.do(func() { err = d.api.Free(base) })
		return err
	}, nil
}

// DeviceMemory is one allocation on an Ascend device. Its arena frees it.
type DeviceMemory struct {
	device *device
	base   uintptr
	bytes  int64
}

// Base is the device address. It means nothing to this process's processor.
func (m *DeviceMemory) Base() uintptr { return m.base }

// Len is the length in bytes.
func (m *DeviceMemory) Len() int64 { return m.bytes }

// Bytes is nil.
func (m *DeviceMemory) Bytes() []byte { return nil }

// CopyIn implements transfer.Copier. It is safe for concurrent use.
func (m *DeviceMemory) CopyIn(offset int64, from []byte) error {
	return m.copy(offset, from, m.device.api.CopyIn)
}

// CopyOut implements transfer.Copier. It is safe for concurrent use.
func (m *DeviceMemory) CopyOut(offset int64, to []byte) error {
	return m.copy(offset, to, m.device.api.CopyOut)
}

func (m *DeviceMemory) copy(offset int64, p []byte, call func(address uintptr, p []byte) error) error {
	if err := checkRange(len(p), offset, m.bytes); err != nil {
		return err
	}
	if len(p) == 0 {
		return nil
	}
	var err error
	m.device.keeper.do(func() { err = call(m.base+uintptr(offset), p) })
	return err
}
