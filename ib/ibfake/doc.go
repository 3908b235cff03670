// Package ibfake provides a fake driver for tests of consumers of package ib. The objects exist, but take no actions of
// their own. A test can make methods fail ([Driver.FailMethod]) or wait ([Driver.HoldMethod]) and can raise completions
// and events ([CQ.Complete], [QP.Raise]). A test can also inspect destroyed objects ([Driver.TakeDestroyedKinds]) and
// posted requests ([QP.SentRequests]).
//
// To transfer data, use the queue pairs of package driver/loopback.
package ibfake
