// Package web serves the web page of a service. The page shows the devices, the connections between them, and the
// programs that use them, and changes devices and fault rules on request.
//
// The page acts through requests of the control protocol ([Source]), with the rights of a client that may manage the
// service. Only a client that knows the token in the page's address gets an answer. The package also refuses requests
// from other web pages: requests with a host name other than localhost (DNS rebinding), requests with another Origin,
// and changes by methods other than POST. The page needs nothing from other servers, and runs no script except its own
// file, so a name that a program has chosen is only text.
//
// The cost is bounded by the number of connections, streams and requests at a time. While no page is open, the package
// does not read the state of the service.
package web
