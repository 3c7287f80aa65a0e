"""The app of the next release: it handles the kind that no worker handled before."""

from holdfast_lab.faults.app import NOBODYS, app, work

app.handler(NOBODYS)(work)
