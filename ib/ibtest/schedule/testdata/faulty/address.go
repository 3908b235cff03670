package faulty

import (
	"errors"

	"verbena/ib"
)

// Address queries an address. It is a client for one device.
type Address struct{ s *addressSession }

type addressSession struct {
	pd *ib.PD
	ah *ib.AH
}

// Client returns the client.
func (a *Address) Client() *ib.Client {
	return &ib.Client{Name: "address", Add: func(d *ib.Device) (any, error) {
		here, err := d.Local(1)
		if err != nil {
			return nil, err
		}
		pd, err := d.AllocPD()
		if err != nil {
			return nil, err
		}
		a.s = &addressSession{pd: pd}
		to := here.AddressTo(here.GID)
		if a.s.ah, err = pd.CreateAH(&to); err == nil {
			_, err = d.QueryPort(1)
		}
		if err != nil {
			return nil, errors.Join(err, a.s.close())
		}
		return nil, nil
	}, Remove: func(*ib.Device, any) { a.s.close() }}
}

// Query queries the address. The client must have a device.
func (a *Address) Query() error { return a.s.query() }

func (s *addressSession) query() error {
	_, err := s.ah.Query()
	return err
}

func (s *addressSession) close() (err error) {
	if s.ah != nil {
		err = s.ah.Destroy()
	}
	return errors.Join(err, s.pd.Dealloc())
}
