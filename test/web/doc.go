// Package web tests the web page of a service in headless Chromium. The package is a module of its own, so users of
// module verbena do not depend on the library that drives the browser.
package web
