package umem

import (
	"math"
	"sync"
)

// Unlimited is the limit of an account that has no limit (CAP_IPC_LOCK, RLIM_INFINITY).
const Unlimited = math.MaxUint64

// Account counts the pages of registrations, usually the registrations of one process, and compares their number with a
// limit. A nil Account counts nothing. Mirrors mm->pinned_vm against RLIMIT_MEMLOCK.
type Account struct {
	limit func() (uint64, error) // bytes; nil: Unlimited

	mu    sync.Mutex
	pages uint64
}

// NewAccount returns an account. NewAccount calls limit for each charge, because a process may change its own limit.
// The result of limit is in bytes. A nil limit means Unlimited.
func NewAccount(limit func() uint64) *Account {
	if limit == nil {
		return &Account{}
	}
	return &Account{limit: func() (uint64, error) { return limit(), nil }}
}

// NewLimitedAccount is the equivalent of NewAccount for a limit that may be unknown. If limit returns an error, the
// charge fails with this error.
func NewLimitedAccount(limit func() (uint64, error)) *Account { return &Account{limit: limit} }

// Pages returns the number of pages that are currently charged.
func (a *Account) Pages() uint64 {
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pages
}

func (a *Account) charge(pages uint64) error {
	if a == nil {
		return nil
	}
	limit := uint64(Unlimited)
	if a.limit != nil {
		var err error
		if limit, err = a.limit(); err != nil {
			return err
		}
	}
	if limit == 0 {
		return ErrNoLock
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if sum := a.pages + pages; sum < pages || limit != Unlimited && sum > limit/PageSize {
		return ErrLimit
	}
	a.pages += pages
	return nil
}

func (a *Account) uncharge(pages uint64) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pages -= pages
}
