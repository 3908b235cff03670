// Package efa is the driver of devices that look like Amazon's Elastic Fabric Adapter: programs with the stock efa
// provider of libibverbs run on them. The driver is a personality of package engine; package layout has the queues.
//
// The devices have scalable reliable datagrams (SRD) and unreliable datagrams (UD), in packets of the form of RoCEv2.
// They report exactly the capabilities that exist here.
// docs/efa.md lists the differences from the real adapter.
package efa
